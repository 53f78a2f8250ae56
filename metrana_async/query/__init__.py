"""Reading back: QueryClient."""
