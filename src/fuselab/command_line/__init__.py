"""The command line: verbs and their options, help, completion, exit codes, streams."""
