"""Window assigners, triggers, watermarks, aggregations and the operators built from them."""
