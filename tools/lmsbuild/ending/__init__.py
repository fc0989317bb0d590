"""How a run ends that the system, or whoever reads what it says, does not let go on."""
