"""Plans of scans and answers from statistics: which files a query needs, which it does not."""
