"""The partitions of an NVSwitch fabric: which GPUs may go to one guest, and the steps that join them. Pure."""
