"""Commands on files of real runs, and files that are dropped on the page; each is found by name."""
