"""Between two tenants: the course of a hand-over, the statement, its signature and its verification.

- `running`: `hosttune handover` as one call. `targets`: which devices, whose they were, what refuses them; `serials`:
  of drives. `course`: the steps of one hand-over, and whether its statement would hold; `record`: its journal;
  `timelimits`: how long a step may take.
- Of the steps: `cleaning` (what a tenant can have left, resets, and erasing, by kind: `erasing/`, `gpumemory`,
  `network/`), `binding` (drivers), `partitions` (NVSwitch), `testing`, `testguest/`.
- `statement`: the statement, and the same facts read again from the live host. `signing`: the signature,
  through `ssh-keygen`; on the controller, never on a host. `verify`: whether a statement is valid here and now, with
  every reason if not. `kept`: statements and lists of revoked keys that a host keeps.
- `calls`: one function for each other command.

The register of quarantined devices is `hosttune.journal.register`, the record of starts `hosttune.model.starts`.
docs/handover.md leads an operator through it; docs/threats.md says what is proven against whom.
"""
