"""Networks and example programs: trained and run on both devices."""
