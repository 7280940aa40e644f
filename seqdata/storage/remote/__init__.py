"""Stores in object stores and on web servers: transport, cache, stores over both."""
