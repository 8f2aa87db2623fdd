"""Files of the kernel and of programs beside us: what they say and, where we may, what is added."""
