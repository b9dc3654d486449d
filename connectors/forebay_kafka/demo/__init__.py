"""The demo: live images through a broker into a training loop that is killed and resumed."""
