"""What a sweep shows: a table on the terminal, a page, and what TensorBoard reads."""
