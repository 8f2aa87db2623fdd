"""What benchmark tools print → figures. Pure; one module a tool. What is not understood is an error, never a value."""
