from dataclasses import replace
from io import StringIO

from rich.console import Console
from scales import Updates

from forkleft.report.plan import show
from forkleft.scale.devices import Cluster, parse_gpus
from forkleft.scale.plan import plan_of
from forkleft.scale.setting import with_server


def shown(plans):
    console = Console(file=StringIO(), width=80)
    show(plans, ["a.json", "known sizes"], console)
    return console.file.getvalue()


def test_the_page_is_80_columns_wide_and_its_parts_add_up():
    setting = replace(Updates(questions=8).setting, processes=8, cluster=parse_gpus("8x80GB"), sharded=True)
    # As large as a real one, so that the parts are seen in GB.
    large = replace(setting, student=replace(setting.student, weights=4_000_000_000, layer=1_900_000_000))
    plans = [plan_of(large), plan_of(with_server(large))]
    page = shown(plans)
    assert max(map(len, page.splitlines())) <= 80
    row = next(line for line in page.splitlines() if "fullest moment" in line)
    assert [float(word) for word in row.split()[-2:]] == [round(plan.memory.peak / 1e9, 1) for plan in plans]
    assert "8 (FSDP2)" in page and "4 (FSDP2), server on 4" in page
    assert "a.json" in page and "known sizes" in page and "Computed, not measured." in page
    assert page.count("fits") == 2 and "does not fit" not in page


def test_what_does_not_fit_gets_the_nearest_that_does():
    setting = Updates(questions=8).setting
    device = replace(setting.cluster.device, memory=plan_of(setting).memory.peak * 0.8, usable=1.0)
    page = shown([plan_of(replace(setting, cluster=Cluster(device, 1)))])
    assert "does not fit" in page
    assert "With the teacher in memory it fits with:" in page
    assert "  gradient_checkpointing: true  (" in page
    assert "  per_device_train_batch_size: 4  (" in page


def test_what_never_fits_is_said():
    setting = Updates().setting
    small = replace(setting, cluster=Cluster(replace(setting.cluster.device, memory=1000.0), 1))
    assert "nothing near this setting fits: name more or larger GPUs" in " ".join(shown([plan_of(small)]).split())
