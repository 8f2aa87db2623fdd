"""Between two tenants: the register of quarantined devices, the statement, its signature and its verification.

- `register`: which devices no guest may have, and which were returned clean (`hosttune.register`).
- `statement`: the statement of a hand-over, and the same facts read again from the live host.
- `signing`: the signature, through `ssh-keygen`; on the controller, never on a host.
- `verify`: whether a statement is valid here and now, with every reason if not.

docs/handover.md leads an operator through it; docs/threats.md says what is proven against whom.
"""
