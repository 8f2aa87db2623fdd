"""The fleet: playbooks run through ansible-runner, waves with gates, and one report over all hosts.

It talks to hosts only through the command line's JSON, which `playbooks/` brings home as RESULTS/HOST/PHASE.json; what
the controller believes is what lies in those files under the run's own id, never an event.
"""
