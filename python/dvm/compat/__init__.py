"""Stand-ins for packages that code written for other devices imports."""
