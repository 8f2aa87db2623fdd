"""Between hosts: pairs of ports, and collectives over groups of hosts."""
