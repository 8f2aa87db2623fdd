"""The partitions of an NVSwitch fabric: which GPUs can go to one guest, and the steps that connect them. Pure."""
