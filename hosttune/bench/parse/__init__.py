"""Output of benchmark tools → figures. Pure; one module per tool. Output that cannot be parsed is an error."""
