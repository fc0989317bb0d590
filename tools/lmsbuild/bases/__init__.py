"""What a wheel is made of where there is no official one: others' packages."""
