"""This client and the hosted service's, through the same misfortunes; README of benchmarks."""
