"""The directory of one policy version: what its files hold, their digest, and who still reads them."""
