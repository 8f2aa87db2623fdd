"""Measurements between hosts: which pairs in which round, what a host does at its end, and what explains low pairs.

`schedule` makes rounds in which no host occurs twice. `ports` says what a host has, and which of its ports are
measured with the memory of GPUs too, `ends` measures at one host with iperf3 or ib_write_bw. `judging` joins the two
ends of each pair and compares the figures; `blame` explains low and cut pairs by hosts, ports, rails and pairs.
`schedule`, `judging` and `blame` are pure. `hosttune.cluster.pairruns` brings the rounds to the hosts.
"""
