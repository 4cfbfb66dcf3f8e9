"""The playground: a local page on which a person asks one or two students and watches them write."""
