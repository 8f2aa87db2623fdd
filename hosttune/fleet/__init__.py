"""The fleet: playbooks run through ansible-runner, waves with gates, and one report over all hosts.

The controller gets data from hosts only as the JSON of the command line, which `playbooks/` copies to
RESULTS/HOST/PHASE.json. It trusts only files that carry the id of the current run. It never trusts an Ansible event.
A result file says `unknown` before the host is asked and is replaced as a whole, so the controller may die at any time.

Documents are read one at a time, and hosts go to Ansible in shards, so memory does not grow with the fleet. Ansible
ends with the run that started it; a new run waits until the last worker is gone.
"""
