"""What a running job does, and why: snapshots, and everything that shows them."""
