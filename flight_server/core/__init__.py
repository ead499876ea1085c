"""The server itself: which requests there are, who may, which rows answer, what is captured and committed."""
