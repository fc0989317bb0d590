"""What is between the tool and the system that it runs on."""
