package envtest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUnderived(t *testing.T) {
	const known = `How many orders of Anna O'Hara were shipped after 2026-03-01? {"name":"orders","columns":["customer_id","shipped_at","total_cents"]} table customers id name`
	for sql, want := range map[string]string{
		`SELECT count(*) FROM orders o JOIN customers c ON c.id = o.customer_id WHERE c.name = 'Anna O''Hara' AND o.shipped_at > '2026-03-01'`: "",
		`select count(*) from orders where shipped_at >= '2026-03-02' limit 10`:                                                                "",
		`CREATE INDEX orders_customer_id_idx ON orders (customer_id)`:                                                                          "",
		`SELECT name FROM customers WHERE name ILIKE '%anna%' -- whatever follows`:                                                             "",
		`SELECT count(*) FROM orders WHERE region = 1`:                                                                                         "region",
		`SELECT count(*) FROM orders WHERE total_cents > 1234`:                                                                                 "1234",
		`SELECT count(*) FROM customers WHERE name = 'Bob'`:                                                                                    `'Bob'`,
		`SELECT "Secret" FROM customers`:                                                                                                       `"Secret"`,
		`SELECT order_status FROM orders`:                                                                                                      "order_status",
	} {
		require.Equal(t, want, underived(sql, known), sql)
	}
}
