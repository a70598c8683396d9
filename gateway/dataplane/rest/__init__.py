"""REST requests that an engine answers as they are, and operations on the fleet."""
