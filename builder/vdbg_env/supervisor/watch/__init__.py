"""What a supervisor watches while a step runs: idle output, memory kills, helper programs."""
