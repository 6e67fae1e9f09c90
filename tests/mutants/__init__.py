"""`make mutants`: small mistakes put into the code one by one, each of which a test has to notice."""
