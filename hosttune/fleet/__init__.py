"""The fleet: playbooks run through ansible-runner, waves with gates, and one report over all hosts.

The controller gets data from hosts only as the JSON of the command line, which `playbooks/` copies to
RESULTS/HOST/PHASE.json. It trusts only files that carry the id of the current run. It never trusts an Ansible event.
"""
