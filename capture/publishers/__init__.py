"""Publishers write captured statistics to their homes (`capture.homes`); catalogs among these are also read back."""
