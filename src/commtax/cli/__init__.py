"""The command line: a thin skin, one file a verb. Exit codes: 0 an answer, 1 no, 2 bad input, 3 no verdict, 70 a fault of ours."""

from commtax.cli.app import VERBS, app, commands, main
