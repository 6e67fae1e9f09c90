"""What any part may use: tasks, threads and files, with nothing of the CRI in it."""
