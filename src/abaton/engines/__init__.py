"""What carries messages and time between the controller and the learners."""
