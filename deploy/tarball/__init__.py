"""The tarball with an offline installer, for nodes whose distribution has no package of dockershim."""
