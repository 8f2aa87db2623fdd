"""Reports in the formats that people read: one drawer a format, each draws any `Report`."""
