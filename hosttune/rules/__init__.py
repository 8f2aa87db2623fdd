"""What is judged: checks of a host, rules of existing XML, causes of low figures, variables of an environment."""
