"""Collectives over several hosts: which hosts in which group, what a host does in one, and which host makes it slow.

`groups` has the series and the search. `meeting` lets the hosts of a group find each other, `member` measures at one
host, `child` is the process that has PyTorch; `listing` says what a host has. `expected` asks `predicting` about a
group, `judging` joins the answers of its hosts and judges them. `groups`, `expected` and `judging` are pure.
`hosttune.cluster.collectiveruns` brings the groups to the hosts.

`child` imports this package in an interpreter that may have only PyTorch. So this file imports nothing.
"""
