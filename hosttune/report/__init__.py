"""Documents → what people read."""
