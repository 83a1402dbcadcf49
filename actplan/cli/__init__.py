"""The command line: one thin file a command. Data on stdout, everything else on stderr."""
