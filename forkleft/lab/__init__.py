"""The lab: a miniature world in which every claim of ForkLeft can be tried in minutes on two CPU cores."""
