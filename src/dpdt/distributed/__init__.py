"""What several processes need to train one model: who holds what, and one sum a step."""
