package bench

import "testing"

func TestPostgres(t *testing.T) { reproduce(t, "Postgres-v0") }

func BenchmarkPostgres(b *testing.B) { speed(b, "Postgres-v0") }
