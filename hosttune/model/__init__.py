"""The values that pass between the packages: host, intent and plan documents. Imports nothing above `errors`."""
