# Completion of hosttune for fish. The script comes from the installed hosttune, so that it fits its version of click.
hosttune completion fish | source
