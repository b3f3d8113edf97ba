"""RULES. State in, choice out; shared by the simulator and the gateway. Pure."""
