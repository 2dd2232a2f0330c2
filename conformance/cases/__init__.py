"""What is asked: the cases of the table, random ones, and the problems that they stand for."""
