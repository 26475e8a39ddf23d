"""The demo: a real model, a real server, real load, and where the time of every request went."""
