"""The values that travel between the rooms: host, intent and plan documents. Imports nothing above `errors`."""
