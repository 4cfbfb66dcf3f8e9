import forkleft
from forkleft.objective.routes import Route, route_of


def test_the_four_pairs_of_verdicts():
    assert route_of(True, True) is Route.CE
    assert route_of(False, True) is Route.LEFTOPD
    assert route_of(False, False) is Route.GOLD
    assert route_of(True, False) is Route.EXCLUDE


def test_route_is_a_public_name_that_prints_as_itself():
    assert forkleft.Route is Route
    assert f"{Route.LEFTOPD}" == "LEFTOPD"
